"""Networks trained as in training_speed, by programs that are optimized or compiled as the study says; their graphs counted."""
