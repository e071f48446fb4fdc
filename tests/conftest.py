"""Servers that several folders of tests need."""

pytest_plugins = ["services", "etcd_service"]
