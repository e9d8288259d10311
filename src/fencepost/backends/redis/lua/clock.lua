-- clock(): the server's time in microseconds.
local function clock()
    local time = redis.call('TIME')
    return time[1] * 1000000 + time[2]
end
