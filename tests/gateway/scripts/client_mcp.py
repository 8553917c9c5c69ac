"""A client made with the Python SDK: does what it is told, line by line, and writes what came of it.

client_mcp.py MODE URL
client_mcp.py MODE COMMAND [ARGUMENT...]

It answers whatever a server asks it.
"""

import asyncio
import sys

import mcp.client.session
import mcp_types as types
from mcp import Client, StdioServerParameters
from orders import carry_out, environment, tell


# A slow machine must not be taken for a server of the older era.
mcp.client.session.DISCOVER_TIMEOUT_SECONDS = 600.0


class Orders:
    """What can be ordered, in the words of this library."""

    def __init__(self, client, tell):
        self.client, self.tell = client, tell

    async def version(self):
        return self.client.session.protocol_version

    async def tools(self):
        return [tool.name for tool in (await self.client.list_tools()).tools]

    async def call(self, name, arguments):
        async def progress(done, total, words):
            self.tell({"progress": [done, total, words]})

        result = await self.client.call_tool(name, arguments, progress_callback=progress)
        return result.model_dump(mode="json", by_alias=True, exclude_none=True)

    async def read(self, uri):
        result = await self.client.read_resource(uri)
        return [content.text for content in result.contents]

    async def prompt(self, name, arguments):
        result = await self.client.get_prompt(name, arguments)
        return [message.content.text for message in result.messages]


async def sample(context, params):
    tell({"asked": "sampling"})
    words = types.TextContent(type="text", text="words of a model")
    return types.CreateMessageResult(role="assistant", content=words, model="none")


async def elicit(context, params):
    tell({"asked": "elicitation"})
    return types.ElicitResult(action="accept", content={"name": "Ada"})


async def roots(context):
    tell({"asked": "roots"})
    return types.ListRootsResult(roots=[types.Root(uri="file:///somewhere")])


async def main(mode, command, *arguments):
    server = StdioServerParameters(command=command, args=arguments, env=environment())
    if command.startswith("http:"):
        server = command
    asked = {"sampling_callback": sample, "elicitation_callback": elicit, "list_roots_callback": roots}
    async with Client(server, mode=mode, **asked) as client:
        await carry_out(lambda tell: Orders(client, tell))


asyncio.run(main(*sys.argv[1:]))
