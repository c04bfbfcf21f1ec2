"""Real local servers that enforce their limits by themselves, on their own clock and books, knowing nothing of Headgate."""
