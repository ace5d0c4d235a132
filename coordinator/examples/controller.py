#!/usr/bin/env python3
"""An application controller for Muster, in Python: it guards workloads on machines of a cluster, and lets a machine go
for maintenance once its workloads have moved away. controller.rs beside it does the same in Rust.

    apt install python3-grpcio python3-protobuf protobuf-compiler protobuf-compiler-grpc
    protoc --proto_path=/usr/share/muster/proto --python_out=. --grpc_python_out=. \
        --plugin=protoc-gen-grpc_python=/usr/bin/grpc_python_plugin muster/v1/maintenance.proto
    muster-coordinator credentials --role controller --name example --out example.toml     # on the coordinator
    PYTHONPATH=. controller.py example.toml edge-7 worker-1 worker-2

What a real one puts in the place of move_away and bring_back is its own affair; the rest is the protocol: register,
watch, answer each request with a lock, and set the lock active again when the request is gone.
"""

import sys
import time
import tomllib

import grpc

from muster.v1 import maintenance_pb2 as wire
from muster.v1 import maintenance_pb2_grpc as service

# The name in the coordinator's certificate, whatever its address.
SERVER_NAME = "coordinator.muster.internal"
# Seconds before the coordinator is dialled again.
AGAIN = 1.0
# Seconds within which a call is answered.
DEADLINE = 30.0


def move_away(machine, removed):
    """Gets the workloads out of the way, off the machine for good if it is removed. An empty name is the cluster
    itself: it is asked whether it can spare machines at all."""
    print(f"{machine or 'the cluster'}: workloads move away{' for good' if removed else ''}", flush=True)


def bring_back(machine):
    """Brings them back."""
    print(f"{machine or 'the cluster'}: workloads come back", flush=True)


class Controller:
    def __init__(self, channel, cluster, machines):
        self.coordinator = service.MaintenanceStub(channel)
        self.cluster = cluster
        self.machines = machines

    def guard(self):
        """Guards the machines until the connection breaks (grpc.RpcError)."""
        register = wire.RegisterRequest(cluster=self.cluster, machines=self.machines, of_cluster=True)
        self.coordinator.Register(register, timeout=DEADLINE)
        for event in self.coordinator.WatchRequests(wire.WatchRequestsRequest(cluster=self.cluster)):
            self.hear(event)

    def hear(self, event):
        request = event.request
        if event.type == wire.RequestEvent.TYPE_PUT:
            move_away(request.machine, request.removal)
            self.set(request.machine, wire.LOCK_STATE_INACTIVE, request.release)
        elif event.type == wire.RequestEvent.TYPE_DELETED and not request.removal:
            self.give_back(request.machine)
        elif event.type == wire.RequestEvent.TYPE_SYNCED:
            # Their requests went away while nobody watched.
            for lock in event.locks:
                if not lock.requested and lock.state != wire.LOCK_STATE_ACTIVE:
                    self.give_back(lock.machine)

    def give_back(self, machine):
        bring_back(machine)
        self.set(machine, wire.LOCK_STATE_ACTIVE, "")

    def set(self, machine, state, release):
        lock = wire.SetLockRequest(cluster=self.cluster, machine=machine, state=state, release=release)
        self.coordinator.SetLock(lock, timeout=DEADLINE)


def main():
    if len(sys.argv) < 3:
        sys.exit("usage: controller.py CREDENTIALS CLUSTER MACHINE...")
    with open(sys.argv[1], "rb") as file:
        mine = tomllib.load(file)
    credentials = grpc.ssl_channel_credentials(
        mine["ca"].encode(), mine["key"].encode(), mine["certificate"].encode()
    )
    options = [("grpc.ssl_target_name_override", SERVER_NAME)]
    while True:
        with grpc.secure_channel(mine["coordinator"], credentials, options) as channel:
            try:
                Controller(channel, sys.argv[2], sys.argv[3:]).guard()
            except grpc.RpcError as error:
                # The coordinator may be starting again: a controller comes back by itself.
                print(f"{error.code().name}: {error.details()}", file=sys.stderr, flush=True)
        time.sleep(AGAIN)


if __name__ == "__main__":
    main()
