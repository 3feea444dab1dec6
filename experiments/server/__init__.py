"""What is done to a tracking server: teams, room, runs moved and sent again."""
