"""``python -m reward_server``: the command line."""

from reward_server.cli.main import main

main()
