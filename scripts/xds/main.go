// A control plane as Envoy Gateway runs it: go-control-plane's snapshot cache, optionally with mutual TLS.
//
//	xds ADDRESS NODE [CERT KEY CA]
//
// Each line of the standard input is a snapshot: VERSION DOMAIN=REQUESTS_PER_HOUR... A domain of 0 requests has a rule without a unit, which
// no one accepts. Prints "ACK VERSION" and "NACK VERSION REASON" as they come, and "listening ADDRESS" first.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/v3"
	ratelimit "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func options(files []string) []grpc.ServerOption {
	if len(files) == 0 {
		return nil
	}
	pair, err := tls.LoadX509KeyPair(files[0], files[1])
	must(err)
	text, err := os.ReadFile(files[2])
	must(err)
	authority := x509.NewCertPool()
	authority.AppendCertsFromPEM(text)
	config := &tls.Config{
		Certificates: []tls.Certificate{pair},
		ClientCAs:    authority,
		ClientAuth:   tls.RequireAndVerifyClientCert,
	}
	return []grpc.ServerOption{grpc.Creds(credentials.NewTLS(config))}
}

func domain(text string) types.Resource {
	name, number, _ := strings.Cut(text, "=")
	requests, err := strconv.ParseUint(number, 10, 32)
	must(err)
	unit := ratelimit.RateLimitUnit_HOUR
	if requests == 0 {
		unit = ratelimit.RateLimitUnit_UNKNOWN
	}
	policy := &ratelimit.RateLimitPolicy{Unit: unit, RequestsPerUnit: uint32(requests)}
	descriptors := []*ratelimit.RateLimitDescriptor{{Key: "user", RateLimit: policy}}
	return &ratelimit.RateLimitConfig{Name: name, Domain: name, Descriptors: descriptors}
}

type node struct{}

func (node) ID(node *core.Node) string { return node.GetId() }

func main() {
	snapshots := cache.NewSnapshotCache(false, node{}, nil)
	callbacks := server.CallbackFuncs{
		StreamRequestFunc: func(_ int64, request *discovery.DiscoveryRequest) error {
			switch {
			case request.GetErrorDetail() != nil:
				reason := strings.ReplaceAll(request.GetErrorDetail().GetMessage(), "\n", " ")
				fmt.Println("NACK", request.GetVersionInfo(), reason)
			case request.GetResponseNonce() != "":
				fmt.Println("ACK", request.GetVersionInfo())
			}
			return nil
		},
	}
	listener, err := net.Listen("tcp", os.Args[1])
	must(err)
	plane := grpc.NewServer(options(os.Args[3:])...)
	discovery.RegisterAggregatedDiscoveryServiceServer(plane, server.NewServer(context.Background(), snapshots, callbacks))
	go func() { must(plane.Serve(listener)) }()
	fmt.Println("listening", listener.Addr())
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		words := strings.Fields(lines.Text())
		var domains []types.Resource
		for _, word := range words[1:] {
			domains = append(domains, domain(word))
		}
		snapshot, err := cache.NewSnapshot(words[0], map[resource.Type][]types.Resource{resource.RateLimitConfigType: domains})
		must(err)
		must(snapshots.SetSnapshot(context.Background(), os.Args[2], snapshot))
	}
}
