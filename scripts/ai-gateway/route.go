// What the extension server of Envoy AI Gateway adds to Envoy's configuration. This file is built in its package, because the functions
// are not exported.
package extensionserver

import (
	aigv1a1 "github.com/envoyproxy/ai-gateway/api/v1alpha1"
	"github.com/envoyproxy/ai-gateway/internal/ratelimit/translator"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	httpconnectionmanagerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"github.com/go-logr/logr"
)

// QuotaRoute returns the route with the limits of these policies, for backends with these models.
func QuotaRoute(policies []aigv1a1.QuotaPolicy, models map[string][]string) (*routev3.Route, error) {
	route := &routev3.Route{}
	err := enableQuotaRateLimitOnRoute(logr.Discard(), route, policies, &routeModelInfo{backendModels: models})
	return route, err
}

// QuotaFilter returns the filter that asks the rate limit service.
func QuotaFilter() (*httpconnectionmanagerv3.HttpFilter, error) {
	server := &Server{quotaRateLimitTimeout: 5}
	return server.buildQuotaRateLimitFilter(translator.QuotaDomain)
}
