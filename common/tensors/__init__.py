"""Named tensors in one flat buffer, in files, and as torch tensors."""
