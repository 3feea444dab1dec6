"""Known work on a device, in the words of each library: what the acceptance kit measures the harness with."""
