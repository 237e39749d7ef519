"""How gRPC servers listen in tests, too: gRPC reads this of the environment when it is loaded."""

from aggregator.ingest import grpc_env

_NAME = "GRPC_EXPERIMENTS"
LISTENING = {_NAME: grpc_env.ENVIRONMENT[_NAME]}
