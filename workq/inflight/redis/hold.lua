-- Hold tasks under the lease of one incarnation. ARGV[3]: the groups, as JSON.
-- Answers false without a live lease; otherwise the ids that other live incarnations keep.
if not is_live(ARGV[2]) then
  return false
end
local groups = cjson.decode(ARGV[3])
began()
return (take(ARGV[2], groups, false))
