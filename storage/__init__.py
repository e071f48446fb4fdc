"""Where state lives: object stores, blobs, packs, manifests, commits."""
