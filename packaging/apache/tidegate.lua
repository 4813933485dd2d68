-- Asks Tidegate (tidegate serve --http) for each request to Apache httpd; see tidegate.conf beside it.
local socket = require "socket"

local host, port = "127.0.0.1", 8080
-- The limit `per-address` of Tidegate's rules. `errors=admit`: requests go on if Tidegate has no such limit; it logs and counts them.
local question = "/v1/check/per-address?errors=admit"
-- With `tidegate serve --access`: "Authorization: Bearer TOKEN\r\n".
local credentials = ""
local timeout, pause = 0.1, 1 -- seconds
-- While Tidegate does not answer, requests go on. For denying them instead: false.
local fail_open = true

-- This thread's failures in a row. After three it does not ask until `again`.
local failures, again = 0, 0

-- The status and the header fields of an answer; nil if there is none in time.
local function ask(key)
    local peer = socket.tcp()
    local deadline = socket.gettime() + timeout
    local function left() peer:settimeout(math.max(deadline - socket.gettime(), 0.001)) end
    left()
    local status, fields = nil, {}
    if peer:connect(host, port) then
        left()
        peer:send("GET " .. question .. " HTTP/1.1\r\nHost: tidegate\r\nConnection: close\r\nX-Tidegate-Key: " .. key .. "\r\n"
            .. credentials .. "\r\n")
        left()
        local line = peer:receive("*l")
        status = line and tonumber(line:match("^HTTP/1%.1 (%d+)"))
        while status do
            left()
            line = peer:receive("*l")
            if not line then status = nil elseif line == "" then break
            else
                local name, value = line:match("^([^:]+):%s*(.*)$")
                if name then fields[name:lower()] = value end
            end
        end
    end
    peer:close()
    return status, fields
end

function check(r)
    if not r.is_initial_req then return apache2.DECLINED end
    local status, fields
    if socket.gettime() >= again then
        status, fields = ask(r.useragent_ip)
        -- 401 and 403 say that Tidegate does not accept this server's credentials.
        if not (status and (status < 300 or status == 429)) then
            if status then r:err("Tidegate answers " .. status) else r:warn("Tidegate did not answer in time") end
            status, failures = nil, failures + 1
            if failures >= 3 then again = socket.gettime() + pause end
        else
            failures = 0
        end
    end
    if not status then
        r.subprocess_env["tidegate-unasked"] = "1"
        return fail_open and apache2.DECLINED or 503
    end
    for name, field in pairs { ["ratelimit"] = "RateLimit", ["ratelimit-policy"] = "RateLimit-Policy", ["retry-after"] = "Retry-After" } do
        if fields[name] then r.err_headers_out[field] = fields[name] end
    end
    return status == 429 and 429 or apache2.DECLINED
end
