# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Starts and stops the programs of a control plane, and others. Source this file; do not run it.
# Whoever does names in KUBECONFIG the file that is written here.

ADDRESS=10.99.0.1
declare -A PIDS

# start NAME command...: runs a program in the background, with a log.
start() {
	local name=$1
	shift
	"$@" </dev/null >>"/gct/logs/$name.log" 2>&1 &
	PIDS[$name]=$!
}

stop() {
	kill "${PIDS[$1]}"
	wait "${PIDS[$1]}"
}

crash() {
	kill -KILL "${PIDS[$1]}"
	wait "${PIDS[$1]}"
}

# await SECONDS command...
await() {
	local limit=$((SECONDS + $1))
	shift
	until "$@" >/dev/null 2>&1; do
		[ $SECONDS -lt $limit ] || return 1
		sleep 0.1
	done
}

# kubeconfig SERVER: prints a configuration of the administrator.
kubeconfig() {
	cat <<-YAML
		apiVersion: v1
		kind: Config
		clusters: [{name: c, cluster: {server: "$1", insecure-skip-tls-verify: true}}]
		users: [{name: u, user: {token: token}}]
		contexts: [{name: x, context: {cluster: c, user: u}}]
		current-context: x
	YAML
}

configure_control_plane() {
	mkdir -p /run/kubernetes
	cd /run/kubernetes
	# A pod that did not fit is tried again soon.
	cat >scheduler.yaml <<-YAML
		apiVersion: kubescheduler.config.k8s.io/v1beta1
		kind: KubeSchedulerConfiguration
		clientConnection: {kubeconfig: $KUBECONFIG}
		leaderElection: {leaderElect: false}
		podInitialBackoffSeconds: 1
		podMaxBackoffSeconds: 1
	YAML
	kubeconfig https://127.0.0.1:6443 >"$KUBECONFIG"
	openssl genrsa -out sa.key 2048
	openssl rsa -in sa.key -pubout -out sa.pub
	printf 'token,admin,1,"system:masters"\n' >tokens
}

start_api_server() {
	start etcd etcd --data-dir /run/kubernetes/etcd --unsafe-no-fsync \
		--listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
		--listen-peer-urls http://127.0.0.1:2380
	start apiserver kube-apiserver --etcd-servers=http://127.0.0.1:2379 --bind-address=127.0.0.1 \
		--advertise-address=$ADDRESS --secure-port=6443 --cert-dir=/run/kubernetes/certs \
		--service-account-issuer=https://issuer --service-account-signing-key-file=/run/kubernetes/sa.key \
		--service-account-key-file=/run/kubernetes/sa.pub --token-auth-file=/run/kubernetes/tokens \
		--authorization-mode=RBAC --service-cluster-ip-range=10.97.0.0/24 \
		--disable-admission-plugins=ServiceAccount --allow-privileged
}

# start_deciders [OPTION...]: the scheduler, and the controllers that a node and the chart need,
# with these options. They want an API server that answers.
start_deciders() {
	await 60 kubectl get --raw /healthz/ping
	start controllers kube-controller-manager --kubeconfig="$KUBECONFIG" --leader-elect=false \
		--controllers=daemonset,garbagecollector,nodelifecycle \
		--service-account-private-key-file=/run/kubernetes/sa.key "$@"
	start scheduler kube-scheduler --config /run/kubernetes/scheduler.yaml
	await 60 kubectl get --raw /readyz
}
