"""The wire inspector: reads captures of a run and says what every byte was for."""
