"""What the clients have in common: orders come in as lines, `["call", "add", {"a": 1}]`, and each is answered with a line,
`{"result": …}` or `{"error": …}`. What is told meanwhile is a line of its own.
"""

import asyncio
import json
import os
import sys

import mcp.client.session

# It takes a server that does not answer within seconds for one of the older era. On a slow machine that would be random.
mcp.client.session.DISCOVER_TIMEOUT_SECONDS = 600.0


def environment():
    """All of ours: by default the libraries keep most of it from what they start."""
    return dict(os.environ)


def tell(message):
    print(json.dumps(message), flush=True)


async def carry_out(orders):
    orders = orders(tell)
    while line := await asyncio.to_thread(sys.stdin.readline):
        name, *arguments = json.loads(line)
        try:
            tell({"result": await getattr(orders, name)(*arguments)})
        except Exception as error:
            tell({"error": str(error)})
