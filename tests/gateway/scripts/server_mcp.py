"""A server made with the Python SDK."""

import os

import anyio
from mcp.server.mcpserver import Context, MCPServer
from mcp_types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult
from pydantic import BaseModel

# The failures of tools are expected, and printing them in colour takes longer than everything else here.
server = MCPServer("python-sdk", instructions="Adds.", log_level="CRITICAL")


@server.tool()
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@server.tool()
async def count(to: int, ctx: Context) -> str:
    """Counts, and tells how far it is."""
    for number in range(1, to + 1):
        await ctx.report_progress(number, to, f"at {number}")
    return f"counted to {to}"


@server.tool()
def fail(why: str) -> str:
    """Fails."""
    raise ValueError(why)


class Name(BaseModel):
    name: str


@server.tool()
async def wonder(ctx: Context) -> str:
    """Asks its client something, and does not wait for the answer."""
    with anyio.move_on_after(0.3):
        await ctx.elicit("never mind", Name)
    return "never mind"


@server.tool()
async def ask(ctx: Context) -> str | InputRequiredResult:
    """Asks for a name in the way of the newer era."""
    if ctx.input_responses is None:
        params = ElicitRequestFormParams(message="who?", requested_schema=Name.model_json_schema())
        return InputRequiredResult(input_requests={"who": ElicitRequest(params=params)}, request_state="asked once")
    return f"{ctx.request_state}: {ctx.input_responses['who'].content}"


@server.tool()
async def learn(ctx: Context) -> str:
    """Says that its tools are others now."""
    await ctx.notify_tools_changed()
    return "learned"


@server.resource("note://{name}")
def note(name: str) -> str:
    """A note."""
    return f"the note {name}"


@server.prompt()
def greet(name: str) -> str:
    """Greets."""
    return f"Say hello to {name}."


# Over HTTP if a port is given, otherwise over stdio.
if port := os.environ.get("PORT"):
    server.run("streamable-http", port=int(port))
else:
    server.run("stdio")
