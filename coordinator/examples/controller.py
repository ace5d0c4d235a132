#!/usr/bin/env python3
"""An application controller for Muster, in Python: it guards workloads on machines of a cluster, and lets a machine go
for maintenance once its workloads have moved away. controller.rs beside it does the same in Rust.

    apt install python3-grpcio python3-protobuf python3-cryptography protobuf-compiler protobuf-compiler-grpc
    protoc --proto_path=/usr/share/muster/proto --python_out=. --grpc_python_out=. \
        --plugin=protoc-gen-grpc_python=/usr/bin/grpc_python_plugin muster/v1/maintenance.proto
    muster-coordinator credentials --role controller --name example --out example.toml     # on the coordinator
    PYTHONPATH=. controller.py example.toml edge-7 worker-1 worker-2

What a real one puts in the place of move_away and bring_back is its own affair; the rest is the protocol: register,
watch, answer each request with a lock, set the lock active again when the request is gone, and renew the certificate at
two thirds of its lifetime.
"""

import datetime
import os
import sys
import time
import tomllib

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from muster.v1 import maintenance_pb2 as wire
from muster.v1 import maintenance_pb2_grpc as service

# The name in the coordinator's certificate, whatever its address.
SERVER_NAME = "coordinator.muster.internal"
# Seconds before the coordinator is dialled again.
AGAIN = 1.0
# Seconds within which a call is answered.
DEADLINE = 30.0
# Seconds before a failed renewal is tried again.
RENEW_AGAIN = 60.0
# A certificate says that it is valid from so long before its issue, for clocks that are behind.
BACKDATED = datetime.timedelta(hours=1)


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

    def guard(self, seconds):
        """Guards the machines for so long, or until the connection breaks (grpc.RpcError)."""
        register = wire.RegisterRequest(cluster=self.cluster, machines=self.machines, of_cluster=True)
        self.coordinator.Register(register, timeout=DEADLINE)
        watch = wire.WatchRequestsRequest(cluster=self.cluster)
        try:
            for event in self.coordinator.WatchRequests(watch, timeout=seconds):
                self.hear(event)
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.DEADLINE_EXCEEDED:
                raise

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


class Credentials:
    """What `muster-coordinator credentials` writes, and what it is renewed to."""

    def __init__(self, path):
        self.path = path
        with open(path, "rb") as file:
            self.texts = tomllib.load(file)

    def channel(self):
        ca, key, certificate = (self.texts[name].encode() for name in ("ca", "key", "certificate"))
        credentials = grpc.ssl_channel_credentials(ca, key, certificate)
        return grpc.secure_channel(
            self.texts["coordinator"], credentials, [("grpc.ssl_target_name_override", SERVER_NAME)]
        )

    def renew_at(self):
        """When two thirds of the certificate's lifetime are over, Unix time."""
        certificate = x509.load_pem_x509_certificate(self.texts["certificate"].encode())
        issued = certificate.not_valid_before + BACKDATED
        due = issued + (certificate.not_valid_after - issued) * 2 / 3
        return due.replace(tzinfo=datetime.timezone.utc).timestamp()

    def renew(self, channel):
        """Takes a new certificate, for a new key. The former one stays valid until it expires."""
        key = ec.generate_private_key(ec.SECP256R1())
        csr = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
        request = wire.RenewCertificateRequest(csr_der=csr.public_bytes(serialization.Encoding.DER))
        renewed = service.MaintenanceStub(channel).RenewCertificate(request, timeout=DEADLINE)
        text = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        self.texts |= {"ca": renewed.ca_pem, "certificate": renewed.certificate_pem, "key": text.decode()}
        try:
            self.save()
        except OSError as error:
            # It is used all the same: the former one will expire.
            print(f"the renewed certificate is not saved: {error}", file=sys.stderr, flush=True)

    def save(self):
        """Writes them in the place of the former ones: a reader, and a power cut, find these or those."""
        new = f"{self.path}.new"
        text = "".join(f'{name} = """\n{value}"""\n' if "\n" in value else f'{name} = "{value}"\n'
                       for name, value in self.texts.items())
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, self.path)
        directory = os.open(os.path.dirname(self.path) or ".", os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def main():
    if len(sys.argv) < 3:
        sys.exit("usage: controller.py CREDENTIALS CLUSTER MACHINE...")
    credentials = Credentials(sys.argv[1])
    renew_at = credentials.renew_at()
    while True:
        with credentials.channel() as channel:
            try:
                if time.time() >= renew_at:
                    # Unless it succeeds.
                    renew_at = time.time() + RENEW_AGAIN
                    credentials.renew(channel)
                    renew_at = credentials.renew_at()
                else:
                    Controller(channel, sys.argv[2], sys.argv[3:]).guard(renew_at - time.time())
                continue
            except grpc.RpcError as error:
                # The coordinator may be starting again: a controller comes back by itself.
                print(f"{error.code().name}: {error.details()}", file=sys.stderr, flush=True)
        time.sleep(AGAIN)


if __name__ == "__main__":
    main()
