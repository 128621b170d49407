"""Reading runs from their folders: find them, their attempts and speeds, held-out scores, facts, and a list of them."""
