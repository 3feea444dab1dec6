"""BERT: word pieces in, self-attention both ways, one classification of each row out."""
