// Go's limiters on a given clock: peers RULE reads schedules as JSON, and prints the decisions of each.
package main

import (
	"encoding/json"
	"os"
	"time"

	"golang.org/x/time/rate"
)

func main() {
	var schedules [][][2]int64
	if err := json.NewDecoder(os.Stdin).Decode(&schedules); err != nil {
		panic(err)
	}
	var decisions []string
	for _, schedule := range schedules {
		limiter := rate.NewLimiter(10, 10)
		made := ""
		for _, ask := range schedule {
			if limiter.AllowN(time.UnixMilli(ask[0]), int(ask[1])) {
				made += "1"
			} else {
				made += "0"
			}
		}
		decisions = append(decisions, made)
	}
	_ = json.NewEncoder(os.Stdout).Encode(decisions)
}
