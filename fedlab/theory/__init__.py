"""The paper's theorem on problems with a known optimum: measured constants, errors, and its bound."""
