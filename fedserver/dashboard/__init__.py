"""The dashboard: a process of its own that reads run directories and shows them in browsers.

cli, __main__  `fedserver dashboard`, and the process that `fedserver run --dashboard` starts
process        how the server starts it: the socket is the server's, the work is not
serving        uvicorn on that socket
app            pages, the stream of changes, headers
access         who may look: this machine, or an operator with a certificate or a token
hub            looks at the directories, and tells all open pages what has changed
history        rounds as points of curves, added up once and thinned for pages
messages       what pages are told
static/        the page; vendor/ has uPlot, which draws the curves
"""
