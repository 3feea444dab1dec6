"""Deep Speech 2: convolutions over a spectrogram, bidirectional LSTMs, CTC loss."""
