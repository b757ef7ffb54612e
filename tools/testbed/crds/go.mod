module testbed/crds

go 1.26

require (
	istio.io/api v1.31.1
	sigs.k8s.io/gateway-api v1.6.3
)
