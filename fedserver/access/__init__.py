"""Who may call: authentication, and limits on what strangers cost."""
