"""LeNet-5 (LeCun et al., 1998) as today's tutorials write it, for both sides."""
