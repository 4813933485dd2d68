#!/usr/bin/env bash
# kgateway 2.2.0 (Go module github.com/kgateway-dev/kgateway/v2): the API says of a TrafficPolicy's `rateLimit.global.descriptors` that each
# descriptor is one rate limit rule. Its translator makes one Envoy rate limit with the actions of all of them, so Envoy sends a single
# descriptor, and sends none at all if a request lacks one of the fields: two limits that were meant (by user; by path) are none for a
# request without a user.
#
# Seen on 2026-11-28, Go 1.26, for a policy with two descriptors of one entry each
#
#   rate limits: 1
#   actions of the first: X-User path
#
# The words promise two rate limits with one action each. Fails if this changes. The build takes seven minutes on two cores.
set -euo pipefail
command -v go >/dev/null || { echo "needs Go" >&2; exit 2; }
scratch=$(mktemp -d)
trap 'chmod -R u+w "$scratch"; rm -rf "$scratch"' EXIT
module=$(go mod download -json github.com/kgateway-dev/kgateway/v2@v2.2.0 | sed -n 's/^.*"Dir": "\(.*\)".*$/\1/p')
grep -q "Each descriptor represents a single rate limit rule" "$module/api/v1alpha1/kgateway/traffic_policy_types.go"
cp -r "$module" "$scratch/kgateway"
chmod -R u+w "$scratch/kgateway"
cd "$scratch/kgateway"
# A test in the package of the translator, whose function is not exported.
cat >pkg/kgateway/extensions2/plugins/trafficpolicy/finding_test.go <<'GO'
package trafficpolicy

import (
	"fmt"
	"testing"

	ratev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	"istio.io/istio/pkg/kube/krt"

	"github.com/kgateway-dev/kgateway/v2/api/v1alpha1/kgateway"
	"github.com/kgateway-dev/kgateway/v2/api/v1alpha1/shared"
)

func TestFinding(t *testing.T) {
	user := "X-User"
	policy := &kgateway.TrafficPolicy{}
	policy.Spec.RateLimit = &kgateway.RateLimit{Global: &kgateway.RateLimitPolicy{Descriptors: []kgateway.RateLimitDescriptor{
		{Entries: []kgateway.RateLimitDescriptorEntry{{Type: kgateway.RateLimitDescriptorEntryTypeHeader, Header: &user}}},
		{Entries: []kgateway.RateLimitDescriptorEntry{{Type: kgateway.RateLimitDescriptorEntryTypePath}}},
	}}}
	extension := func(krt.HandlerContext, shared.NamespacedObjectReference, string) (*TrafficPolicyGatewayExtensionIR, error) {
		return &TrafficPolicyGatewayExtensionIR{RateLimit: &ratev3.RateLimit{}}, nil
	}
	out := trafficPolicySpecIr{}
	if err := constructGlobalRateLimit(nil, policy, extension, &out); err != nil {
		t.Fatal(err)
	}
	limits := out.globalRateLimit.rateLimitActions
	fmt.Println("rate limits:", len(limits))
	fmt.Print("actions of the first:")
	for _, action := range limits[0].GetActions() {
		fmt.Print(" ", action.GetRequestHeaders().GetDescriptorKey())
	}
	fmt.Println()
}
GO
found=$(CGO_ENABLED=0 go test -run '^TestFinding$' -v ./pkg/kgateway/extensions2/plugins/trafficpolicy | grep -E '^(rate limits|actions)')
echo "$found"
[ "$found" = $'rate limits: 1\nactions of the first: X-User path' ]
