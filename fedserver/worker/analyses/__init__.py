"""What is found out about x and the clients' models besides accuracy and loss, by the process with torch."""
