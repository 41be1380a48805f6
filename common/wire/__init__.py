"""Bytes between server and client: messages, manifests, chunks, codecs, captures."""
