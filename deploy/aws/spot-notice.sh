#!/bin/sh
# Exits with 0 once AWS has said that it will take this spot instance away, about two minutes before. For
# `easyscale worker --notice-command`, which asks every 2 s and waits for 4 s at most.
set -eu
metadata=${EC2_METADATA:-http://169.254.169.254}
token=$(curl -sf -m 1 -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' "$metadata/latest/api/token")
exec curl -sf -m 1 -o /dev/null -H "X-aws-ec2-metadata-token: $token" "$metadata/latest/meta-data/spot/instance-action"
