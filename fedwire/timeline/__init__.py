"""Who sent what when: a capture as attempts to carry something, what stands out in them, and a page."""
