"""What is found out about x and the clients' models beside accuracy and loss, by the process with torch."""
