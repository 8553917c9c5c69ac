"""A client made with fastmcp: does what it is told, line by line, and writes what came of it.

client_fastmcp.py MODE (COMMAND [ARGUMENT...] | URL)
"""

import asyncio
import sys

from fastmcp import Client
from fastmcp.client.transports import StdioTransport, StreamableHttpTransport
from orders import carry_out, environment


class Orders:
    """What can be ordered, in the words of this library."""

    def __init__(self, client, tell):
        self.client, self.tell = client, tell

    async def version(self):
        return self.client.session.protocol_version

    async def tools(self):
        return [tool.name for tool in await self.client.list_tools()]

    async def call(self, name, arguments):
        async def progress(done, total, words):
            self.tell({"progress": [done, total, words]})

        result = await self.client.call_tool_mcp(name, arguments, progress_handler=progress)
        return result.model_dump(mode="json", by_alias=True, exclude_none=True)

    async def read(self, uri):
        return [content.text for content in await self.client.read_resource(uri)]

    async def prompt(self, name, arguments):
        result = await self.client.get_prompt(name, arguments)
        return [message.content.text for message in result.messages]


async def main(mode, command, *arguments):
    if command.startswith("http://"):
        transport = StreamableHttpTransport(command)
    else:
        transport = StdioTransport(command, list(arguments), env=environment())
    async with Client(transport, mode=mode) as client:
        await carry_out(lambda tell: Orders(client, tell))


asyncio.run(main(*sys.argv[1:]))
