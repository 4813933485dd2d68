// Go's limiters on a given clock: peers RULE reads schedules as JSON, and prints the decisions of each.
package main

import (
	"context"
	"encoding/json"
	"os"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/go-redis/redis_rate/v10"
	"github.com/juju/ratelimit"
	"github.com/redis/go-redis/v9"
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

// The clock of juju's bucket.
type manual struct{}

func (manual) Now() time.Time        { return now }
func (manual) Sleep(time.Duration)   {}

var rules = map[string]func() func(cost int) bool{
	"redis-rate": func() func(int) bool {
		// A Redis server for tests, whose scripts read the schedule's time.
		server, err := miniredis.Run()
		if err != nil {
			panic(err)
		}
		client := redis.NewClient(&redis.Options{Addr: server.Addr()})
		limiter := redis_rate.NewLimiter(client)
		return func(cost int) bool {
			server.SetTime(now)
			told, err := limiter.AllowN(context.Background(), "key", redis_rate.PerSecond(10), cost)
			if err != nil {
				panic(err)
			}
			return told.Allowed > 0
		}
	},
	"juju": func() func(int) bool {
		bucket := ratelimit.NewBucketWithRateAndClock(10, 20, manual{})
		return func(cost int) bool {
			_, admitted := bucket.TakeMaxDuration(int64(cost), 0)
			return admitted
		}
	},
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
