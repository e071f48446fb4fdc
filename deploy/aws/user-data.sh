#!/bin/bash
# User data of a spot instance with NVIDIA's driver, Python and AWS's command line, as AWS's deep learning images have
# them. The instance's role may read both places below and the bucket of EASYSCALE_STORE. What INSTALL holds:
#   the wheel (`pip wheel --no-deps .`), constraints.txt, deploy/systemd/easyscale-worker@.service, spot-notice.sh
set -euo pipefail
INSTALL=s3://ml-training/easyscale-install/
SETTINGS=/easyscale/settings # a SecureString of Parameter Store with the lines of deploy/easyscale.env
REGION=eu-central-1

useradd --system --user-group easyscale
mkdir -p /opt/easyscale/install /etc/easyscale "/etc/systemd/system/easyscale-worker@.service.d"
aws s3 cp --region "$REGION" --recursive "$INSTALL" /opt/easyscale/install
(
    umask 077
    aws ssm get-parameter --region "$REGION" --name "$SETTINGS" --with-decryption --query Parameter.Value \
        --output text >/etc/easyscale/easyscale.env
)
python3 -m venv /opt/easyscale
/opt/easyscale/bin/pip install --constraint /opt/easyscale/install/constraints.txt /opt/easyscale/install/*.whl
install -m 755 /opt/easyscale/install/spot-notice.sh /usr/local/bin/easyscale-spot-notice
install -m 644 "/opt/easyscale/install/easyscale-worker@.service" /etc/systemd/system/

# The machine is ours alone, so nobody has to be waited for; the notice comes two minutes before the end. Who has left
# because of it is not started again.
cat >"/etc/systemd/system/easyscale-worker@.service.d/spot.conf" <<'DROP_IN'
[Service]
ExecStart=
ExecStart=/opt/easyscale/bin/easyscale worker --device %I --grace 90 --notice-command /usr/local/bin/easyscale-spot-notice
TimeoutStopSec=110
Restart=on-failure
DROP_IN
systemctl daemon-reload
systemctl enable --now easyscale-worker@all
