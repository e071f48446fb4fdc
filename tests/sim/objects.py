"""The object store as simulated processes see it: the real `storage/s3.py` over a client that is a dict and lies."""

from __future__ import annotations

import io
from collections import deque
from datetime import UTC, datetime
from email.utils import format_datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError, ConnectionClosedError, EndpointConnectionError, IncompleteReadError
from easyscale.storage.s3 import S3Store

from .virtual import EPOCH

if TYPE_CHECKING:
    from .world import World

LIST_LAG_SECONDS = 30.0


class SimS3(S3Store):
    """The real store; only the connection is played."""

    def __init__(self, client: Any, deadline: float) -> None:
        self.address, self._bucket, self._prefix, self._deadline = "s3://sim", "sim", "", deadline
        self._client = client


class Body(io.BytesIO):
    """An answer whose connection breaks."""

    def read(self, *_: Any) -> bytes:
        raise IncompleteReadError(actual_bytes=0, expected_bytes=1)

    def readinto(self, *_: Any) -> int:
        raise IncompleteReadError(actual_bytes=0, expected_bytes=1)


def refusal(status: int, code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": ""}, "ResponseMetadata": {"HTTPStatusCode": status}}, "call")  # type: ignore[arg-type]


class FakeClient:
    """What `S3Store` uses of boto3's client."""

    meta = SimpleNamespace(endpoint_url="http://sim")

    def __init__(self, world: World) -> None:
        self.world = world
        self.objects: dict[str, bytes] = {}
        self.intact: dict[str, bytes] = {}
        """As they were sent: what the judge reads, and what tells damage."""
        self.written: dict[str, float] = {}
        self.down_until = self.full_until = 0.0
        self._listed: deque[tuple[float, str, bool]] = deque()
        self._uploads: dict[str, dict[int, bytes]] = {}

    # ---- calls

    def put_object(self, *, Key: str, Body: bytes, IfNoneMatch: str | None = None, **_: Any) -> dict[str, Any]:  # noqa: N803
        self._arrive(write=True)
        world = self.world
        if IfNoneMatch and world.chance("store_conflict", "409 on a conditional create"):
            raise refusal(409, "ConditionalRequestConflict")
        if not IfNoneMatch and world.chance("store_late", "object written late"):
            world.hub.at(world.hub.now + world.rng.uniform(0.0, 20.0), self.store, Key, Body)
            raise ConnectionClosedError(endpoint_url="sim")
        if IfNoneMatch and Key in self.objects:
            self._answer()
            raise refusal(412, "PreconditionFailed")
        self.store(Key, Body)
        self._answer()
        return {}

    def get_object(self, *, Key: str, **_: Any) -> dict[str, Any]:  # noqa: N803
        self._arrive()
        data = self.objects.get(Key)
        self._answer()
        if data is None:
            raise refusal(404, "NoSuchKey")
        if self.world.chance("store_cut", "answer cut short"):
            return {"Body": Body(), "ContentLength": len(data)}
        if data and self.world.chance("store_flip", "bit flipped on the way"):
            self.world.hurt = True
            data = self._flipped(data)
        return {"Body": io.BytesIO(data), "ContentLength": len(data)}

    def head_object(self, *, Key: str, **_: Any) -> dict[str, Any]:  # noqa: N803
        self._arrive()
        data = self.objects.get(Key)
        self._answer()
        if data is None:
            raise refusal(404, "404")
        return {"ContentLength": len(data), "LastModified": self._stamp(Key), **self._date()}

    def delete_object(self, *, Key: str, **_: Any) -> dict[str, Any]:  # noqa: N803
        self._arrive(write=True)
        if not self.world.chance("store_undeleted", "object not deleted"):
            self.objects.pop(Key, None)
            self._listed.append((self.world.hub.now, Key, False))
        self._answer()
        return {}

    def list_objects_v2(self, *, Prefix: str = "", **_: Any) -> dict[str, Any]:  # noqa: N803
        self._arrive()
        now = self.world.hub.now
        seen = set(self.objects)
        for when, key, there in reversed(self._listed):
            if now - when < LIST_LAG_SECONDS:
                (seen.discard if there else seen.add)(key)
        self._answer()
        contents = [
            {"Key": key, "Size": len(self.objects.get(key, b"")), "LastModified": self._stamp(key)}
            for key in sorted(seen)
            if key.startswith(Prefix)
        ]
        return {"IsTruncated": False, "Contents": contents, **self._date()}

    def create_multipart_upload(self, **_: Any) -> dict[str, Any]:
        self._arrive(write=True)
        upload = f"upload{next(self.world.numbers)}"
        self._uploads[upload] = {}
        self._answer()
        return {"UploadId": upload}

    def upload_part(self, *, UploadId: str, PartNumber: int, Body: bytes, **_: Any) -> dict[str, Any]:  # noqa: N803
        self._arrive(write=True)
        if UploadId not in self._uploads:
            raise refusal(404, "NoSuchUpload")
        self._uploads[UploadId][PartNumber] = Body
        self._answer()
        return {"ETag": str(PartNumber)}

    def complete_multipart_upload(self, *, Key: str, UploadId: str, **_: Any) -> dict[str, Any]:  # noqa: N803
        self._arrive(write=True)
        if self.world.chance("store_hollow", "200 with an error inside"):
            if self.world.rng.random() < 0.5:
                raise refusal(500, "InternalError")  # what botocore makes of the body
            return {}
        parts = self._uploads.pop(UploadId, None)
        if parts is None:
            raise refusal(404, "NoSuchUpload")
        self.store(Key, b"".join(parts[number] for number in sorted(parts)))
        self._answer()
        return {}

    def abort_multipart_upload(self, *, UploadId: str, **_: Any) -> dict[str, Any]:  # noqa: N803
        self._uploads.pop(UploadId, None)
        return {}

    # ---- behind the network

    def store(self, key: str, data: bytes) -> None:
        """An object is there from now on."""
        world = self.world
        self.intact.setdefault(key, data)
        if key.startswith("blobs/") and len(data) > 1 and world.chance("store_torn", "torn upload"):
            data = data[: len(data) // 2]
            world.hurt = True
        if key not in self.objects:
            self._listed.append((world.hub.now, key, True))
        self.objects[key] = data
        self.written[key] = world.hub.now
        world.judge.stored(key, data)

    def _stamp(self, key: str) -> datetime:
        return datetime.fromtimestamp(EPOCH + self.written[key], UTC)

    def _date(self) -> dict[str, Any]:
        now = datetime.fromtimestamp(EPOCH + self.world.hub.now, UTC)
        return {"ResponseMetadata": {"HTTPHeaders": {"date": format_datetime(now, usegmt=True)}}}

    def rot(self, key: str) -> None:
        """A bit of a stored object changes."""
        if self.objects.get(key):
            self.objects[key] = self._flipped(self.objects[key])

    def damaged(self, key: str) -> bool:
        return self.objects.get(key) != self.intact.get(key)

    def _flipped(self, data: bytes) -> bytes:
        at = self.world.rng.randrange(len(data))
        return data[:at] + bytes([data[at] ^ 1 << self.world.rng.randrange(8)]) + data[at + 1 :]

    def _arrive(self, *, write: bool = False) -> None:
        world, now = self.world, self.world.hub.now
        slow = world.chance("store_slow", "object call slow")
        world.hub.sleep(world.rng.uniform(0.2, 5.0) if slow else world.rng.uniform(0.001, 0.02))
        if self.down_until > now:
            raise EndpointConnectionError(endpoint_url="sim")
        if write and self.full_until > now:
            raise refusal(500, "InternalError")
        if world.chance("store_lost", "object request lost"):
            raise world.rng.choice(
                [EndpointConnectionError(endpoint_url="sim"), refusal(500, "InternalError"), refusal(503, "SlowDown")]
            )

    def _answer(self) -> None:
        world = self.world
        world.hub.sleep(world.rng.uniform(0.001, 0.01))
        if world.chance("store_answer_lost", "object call applied, answer lost"):
            raise world.rng.choice([ConnectionClosedError(endpoint_url="sim"), refusal(500, "InternalError")])
