"""The parent: a campaign launched, its cells run in processes of their own, concluded."""
