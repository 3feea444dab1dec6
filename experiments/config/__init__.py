"""What can be set: settings of every experiment and command, devices, the terminal's display."""
