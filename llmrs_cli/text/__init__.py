"""Text to ids and back: tokenizer, template, stream, and the TextEngine over them."""
