// Go's limiters on a given clock: peers RULE reads schedules as JSON, and prints the decisions of each.
package main

import (
	"encoding/json"
	"os"
	"time"

	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/memstore"
	"golang.org/x/time/rate"
)

var now time.Time

// A store of throttled whose time is that of the schedule.
type clocked struct{ *memstore.MemStore }

func (store clocked) GetWithTime(key string) (int64, time.Time, error) {
	value, _, err := store.MemStore.GetWithTime(key)
	return value, now, err
}

var rules = map[string]func() func(cost int) bool{
	"xtime": func() func(int) bool {
		limiter := rate.NewLimiter(10, 10)
		return func(cost int) bool { return limiter.AllowN(now, cost) }
	},
	"throttled-go": func() func(int) bool {
		store, err := memstore.New(10)
		if err != nil {
			panic(err)
		}
		limiter, err := throttled.NewGCRARateLimiter(clocked{store}, throttled.RateQuota{MaxRate: throttled.PerSec(10), MaxBurst: 9})
		if err != nil {
			panic(err)
		}
		return func(cost int) bool {
			denied, _, err := limiter.RateLimit("key", cost)
			if err != nil {
				panic(err)
			}
			return !denied
		}
	},
}

func main() {
	var schedules [][][2]int64
	if err := json.NewDecoder(os.Stdin).Decode(&schedules); err != nil {
		panic(err)
	}
	var decisions []string
	for _, schedule := range schedules {
		ask := rules[os.Args[1]]()
		made := ""
		for _, each := range schedule {
			now = time.UnixMilli(each[0])
			if ask(int(each[1])) {
				made += "1"
			} else {
				made += "0"
			}
		}
		decisions = append(decisions, made)
	}
	_ = json.NewEncoder(os.Stdout).Encode(decisions)
}
