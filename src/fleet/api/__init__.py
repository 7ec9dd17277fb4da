"""The HTTP door: JSON in and out, problem documents for every no. No rule of the product lives here."""
