"""Page data to text, a page or JSON."""
