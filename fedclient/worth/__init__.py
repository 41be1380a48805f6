"""Is it worth it for a site? A model of its own data, the federation's, and that one fine-tuned here."""
