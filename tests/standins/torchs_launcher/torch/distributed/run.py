"""Starts the ranks of a program, as ``python -m torch.distributed.run`` does."""

import argparse

from torch.distributed.launcher import api


def get_args_parser():
    parser = argparse.ArgumentParser()
    parser.add_argument("--nproc_per_node", type=int)
    parser.add_argument("--master_port", type=int)
    parser.add_argument("--signals-to-handle", default="SIGTERM,SIGINT,SIGHUP,SIGQUIT")
    parser.add_argument("program")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    return parser


if __name__ == "__main__":
    config = get_args_parser().parse_args()
    api.launch_agent(config, config.program, config.arguments)
