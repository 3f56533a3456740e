"""Where models come from: names, downloads, files on disk."""
