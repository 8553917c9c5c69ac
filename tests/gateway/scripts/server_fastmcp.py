"""The same server made with fastmcp."""

import os

from fastmcp import Context, FastMCP

server = FastMCP("fastmcp", instructions="Adds.")


@server.tool
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@server.tool
async def count(to: int, ctx: Context) -> str:
    """Counts, and tells how far it is."""
    for number in range(1, to + 1):
        await ctx.report_progress(number, to, f"at {number}")
    return f"counted to {to}"


@server.tool
def fail(why: str) -> str:
    """Fails."""
    raise ValueError(why)


@server.resource("note://{name}")
def note(name: str) -> str:
    """A note."""
    return f"the note {name}"


@server.prompt
def greet(name: str) -> str:
    """Greets."""
    return f"Say hello to {name}."


# Over HTTP if a port is given, otherwise over stdio.
if port := os.environ.get("PORT"):
    server.run("http", port=int(port), show_banner=False)
else:
    server.run("stdio", show_banner=False)
