// A control plane as Envoy Gateway runs it: go-control-plane's snapshot cache, optionally with mutual TLS.
//
//	xds ADDRESS NODE [CERT KEY CA]
//
// Each line of the standard input is a snapshot: VERSION DOMAIN=REQUESTS_PER_HOUR... A domain of 0 requests has a rule without a unit, which
// no one accepts. VERSION @FILE has the domains of a file of the rate limit service, with FILE's name in front, in another order each time,
// and with limits per year, so that no window ends during a test; for each limit a line "rule DOMAIN KEY=VALUE..." comes first. Prints "ACK VERSION" and "NACK VERSION REASON" as they come, and "listening ADDRESS" first.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/rand"
	"net"
	"os"
	"path/filepath"
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
	"gopkg.in/yaml.v3"
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

// A domain, or a descriptor in it, as the rate limit service writes it.
type entry struct {
	Domain      string
	Key, Value  string
	Descriptors []entry
	Shadow      bool `yaml:"shadow_mode"`
	Quota       bool `yaml:"quota_mode"`
	Limit       *struct {
		Requests  uint32 `yaml:"requests_per_unit"`
		Unlimited bool
		Name      string
	} `yaml:"rate_limit"`
}

func descriptors(entries []entry, path string) []*ratelimit.RateLimitDescriptor {
	var all []*ratelimit.RateLimitDescriptor
	for _, entry := range entries {
		path := path + "\t" + entry.Key + "=" + entry.Value
		its := &ratelimit.RateLimitDescriptor{
			Key: entry.Key, Value: entry.Value, ShadowMode: entry.Shadow, QuotaMode: entry.Quota,
			Descriptors: descriptors(entry.Descriptors, path),
		}
		if limit := entry.Limit; limit != nil {
			fmt.Println("rule\t" + path)
			its.RateLimit = &ratelimit.RateLimitPolicy{
				Unit: ratelimit.RateLimitUnit_YEAR, RequestsPerUnit: limit.Requests, Unlimited: limit.Unlimited, Name: limit.Name,
			}
		}
		all = append(all, its)
	}
	return all
}

func domains(file string) []types.Resource {
	text, err := os.Open(file)
	must(err)
	defer text.Close()
	var all []types.Resource
	for decoder := yaml.NewDecoder(text); ; {
		var domain entry
		if err := decoder.Decode(&domain); err == io.EOF {
			break
		} else {
			must(err)
		}
		name := filepath.Base(file) + "/" + domain.Domain
		all = append(all, &ratelimit.RateLimitConfig{Name: name, Domain: name, Descriptors: descriptors(domain.Descriptors, name)})
	}
	rand.Shuffle(len(all), func(a, b int) { all[a], all[b] = all[b], all[a] })
	return all
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
		var resources []types.Resource
		for _, word := range words[1:] {
			if file, is := strings.CutPrefix(word, "@"); is {
				resources = append(resources, domains(file)...)
			} else {
				resources = append(resources, domain(word))
			}
		}
		snapshot, err := cache.NewSnapshot(words[0], map[resource.Type][]types.Resource{resource.RateLimitConfigType: resources})
		must(err)
		must(snapshots.SetSnapshot(context.Background(), os.Args[2], snapshot))
	}
}
