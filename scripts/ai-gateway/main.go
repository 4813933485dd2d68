// quotas PORT: reads resources of Kubernetes as YAML, prints what Envoy AI Gateway makes of their QuotaPolicies for Envoy (a JSON object in
// one line: the filter, and the route of the first rule of each AIGatewayRoute), and serves what it makes for the rate limit service at
// this port until it is killed.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	aigv1a1 "github.com/envoyproxy/ai-gateway/api/v1alpha1"
	aigv1b1 "github.com/envoyproxy/ai-gateway/api/v1beta1"
	"github.com/envoyproxy/ai-gateway/internal/extensionserver"
	"github.com/envoyproxy/ai-gateway/internal/ratelimit/runner"
	"github.com/envoyproxy/ai-gateway/internal/ratelimit/translator"
	rlsconfv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"github.com/go-logr/logr"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

func must[T any](value T, err error) T {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return value
}

func message(value proto.Message) json.RawMessage {
	return must(protojson.Marshal(value))
}

func main() {
	port := must(strconv.Atoi(os.Args[1]))
	var policies []aigv1a1.QuotaPolicy
	var routes []aigv1b1.AIGatewayRoute
	backends := map[string]*aigv1b1.AIServiceBackend{}
	for _, document := range bytes.Split(must(io.ReadAll(os.Stdin)), []byte("\n---")) {
		var kind metav1.TypeMeta
		if yaml.Unmarshal(document, &kind) != nil {
			continue
		}
		switch kind.Kind {
		case "QuotaPolicy":
			var policy aigv1a1.QuotaPolicy
			must(0, yaml.UnmarshalStrict(document, &policy))
			policies = append(policies, policy)
		case "AIGatewayRoute":
			var route aigv1b1.AIGatewayRoute
			must(0, yaml.UnmarshalStrict(document, &route))
			routes = append(routes, route)
		case "AIServiceBackend":
			var backend aigv1b1.AIServiceBackend
			must(0, yaml.UnmarshalStrict(document, &backend))
			backends[backend.Namespace+"/"+backend.Name] = &backend
		}
	}

	var descriptors []*rlsconfv3.RateLimitDescriptor
	for i := range policies {
		var targets []*aigv1b1.AIServiceBackend
		for _, target := range policies[i].Spec.TargetRefs {
			if backend := backends[policies[i].Namespace+"/"+string(target.Name)]; backend != nil {
				targets = append(targets, backend)
			}
		}
		for _, config := range must(translator.BuildRateLimitConfigs(&policies[i], targets)) {
			descriptors = append(descriptors, config.Descriptors...)
		}
	}
	configs := []*rlsconfv3.RateLimitConfig{{
		Name:        translator.QuotaDomain,
		Domain:      translator.QuotaDomain,
		Descriptors: translator.MergeDescriptors(descriptors),
	}}

	made := map[string]json.RawMessage{"filter": message(must(extensionserver.QuotaFilter()))}
	for _, route := range routes {
		models := map[string][]string{}
		for _, backend := range route.Spec.Rules[0].BackendRefs {
			models[backend.Name] = append(models[backend.Name], backend.ModelNameOverride)
		}
		made[route.Name] = message(must(extensionserver.QuotaRoute(policies, models)))
	}
	line := string(must(json.Marshal(made)))

	server := runner.New(logr.Discard(), port)
	go func() { must(0, server.Start(context.Background())) }()
	// The cache is there once the server has begun to start.
	for {
		err := server.UpdateConfigs(context.Background(), configs)
		if err == nil {
			break
		}
		if !strings.Contains(err.Error(), "not initialized") {
			must(0, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	fmt.Println(line)
	select {}
}
