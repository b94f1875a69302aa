"""Machine translation: training a Transformer with any method, beam search and BLEU."""
